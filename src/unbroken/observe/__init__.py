"""What programs and people are told of a flow: metrics, traces and a summary."""
