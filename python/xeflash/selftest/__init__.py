"""`xeflash selftest`: small cases of every algorithm on one device, against attention by the book in float64.

`cases` lists them; `dense`, `cached`, `merged` and `linear` draw their arrays, call a public function and judge what it
returned, by `reference` and `tolerance`. `pool` runs them in processes of their own, as a driver may crash or hang;
`limits` is what devices can do. It needs numpy, and takes torch's tensors where torch has the device, else arrays in
USM.
"""
