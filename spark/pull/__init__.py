"""Reading offset ranges on an executor: pull requests out, Arrow record batches in.

`range_reader.read_ranges` is the entry point. It gets answers from `pull_pipeline`, checks that no offset is missing,
and decodes them with `column_decoder` (vectorised, almost always) or `row_decoder` (message by message, the reference).
"""
