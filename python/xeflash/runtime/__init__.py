"""The lowest floor: the extension and its libraries, arrays of other libraries, the cache folder."""
