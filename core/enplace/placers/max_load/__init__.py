"""Pipelines: partitions of a graph whose busiest device has the least load (time per sample).

After Tarnawski et al. 2020, sections 3 and 5 and appendix B.
"""
