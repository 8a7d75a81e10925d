"""Node processes that stay warm from one test to the next, and the nodes of one run on them."""
