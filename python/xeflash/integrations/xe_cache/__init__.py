"""A KV cache for Transformers' models that appends in place and reorders beams by a table, without copies.

Rows are the sequences of a batch, columns their keys. New keys are written by the attention call itself, into columns
that are there already. Beam search permutes a table of int32 (rows, columns): which row holds a row's key of a column.
Room is made by doubling, which gathers the keys by the table, so that every row has its own again; layers with a window
then leave behind what no later query will see.
"""
