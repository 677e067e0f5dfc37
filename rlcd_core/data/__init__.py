"""Data: manifests, converters, splits, and the synthetic tickets. NumPy, no torch.

`manifest.fetch` brings packaged files by hash, `build.load_items` gives built splits,
`rater.load_rater` the texts with many raters, `triage` tickets with a known posterior,
`nota.present` the options as the protocol shows them, `log.read_log` logged decisions.
"""
