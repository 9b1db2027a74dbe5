"""Cases of products of matrices."""
