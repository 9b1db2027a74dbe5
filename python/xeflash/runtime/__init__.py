"""Below everything else: the extension and its libraries, arrays of others, the folder of caches."""
