"""The live page of a flow: what its nodes say, made into one document that a browser shows."""
