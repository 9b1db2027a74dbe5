"""What Specs of the tests are chosen from: each axis once. A sweep takes all of it, or names what it takes."""

DIMS = (16, 40, 59, 64, 80, 96, 111, 128, (192, 128), 256, (576, 512))
STEPS_OF_8 = (8, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256)  # of head dims, which GPUs have
ODD_DIMS = (1, 2, 3, 15, 17, 23, 59, 111, 127)
HEADS = ((2, 2), (8, 2), (3, 1), (10, 2))
FEW_HEADS = ((1, 1), (2, 2), (3, 1), (4, 2))  # where arithmetic is dear
DECODE_HEADS = ((2, 2), (8, 2), (10, 2), (8, 1), (12, 1), (20, 1))
CACHE_HEADS = ((32, 32), (32, 8), (40, 10), (8, 1), (6, 2))
WINDOWS = ("full", "causal", "31,5", "50,-1", "-1,10", "20,causal", "causal-tl", "31,5-tl")  # only attention() has -tl
CACHE_WINDOWS = WINDOWS[:4]
SCORES = ("softcap", "alibi", "mask", "bias", "dropout")
VARIANTS = ("plain", *SCORES, "softcap+alibi+bias32", "snippet", "softcap+snippet")
BROADCASTS = ("bhqk", "b1qk", "1hqk", "qk", "b11k", "1hq1")
SCALES = (None, 0.3, -0.2, 0.0)
ENTRIES = ("func", "attention", "varlen", "varlen-used", "kvpacked", "qkvpacked", "varlen-kvpacked", "varlen-qkvpacked")
LENGTHS = ((5000,), (1,), (0, 17), (129, 0, 700), (70, 9), (31, 64, 65, 1, 300, 255, 256, 3))  # of caches, at the end
FORMATS = ("e4m3", "e5m2", "int8")
DOCUMENTS = ("sorted", "random", "one", "different")
