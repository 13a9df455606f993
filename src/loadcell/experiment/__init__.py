"""Fleet + load + report: a specification, the matrix of cells that it means, and the run of them."""
