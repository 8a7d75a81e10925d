"""What follows from a flow's token: keys, seals over documents, certificates, challenges.

The token is the one secret of a flow. It stays in the processes that were given it: everything that is stored or
sent is derived from it, for one purpose each.
"""
