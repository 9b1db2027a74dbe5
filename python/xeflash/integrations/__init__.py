"""Attention of other libraries, run by xeflash; each module is imported only by those who use that library."""
