"""Reading offset ranges on an executor: pull requests out, Arrow record batches in.

`range_reader.read_ranges` is the entry point. Answers come from `pull_pipeline`, `record_batches` checks them and
decodes them with `column_decoder` (vectorised, almost always) or `row_decoder` (message by message, the reference).
"""
