"""Search a service's parameters for the most within its latency limits, in few launches, and prove the winner."""
