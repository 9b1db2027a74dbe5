"""The functions of products of matrices: linear layers, softmax of products, language-model heads."""
