"""The parts of prepare_data.py, from files of texts and chats to token files, in the order in which
a document passes through them.

  records        files (JSONL, JSON, Parquet, Arrow, text; gzip, zstd) to documents
  fields         which fields a record may have, and what becomes of each
  conversations  a document's keys to messages or a text
  templates      messages to text by the chat template, and which characters are trained on
  encoding       text to token ids, and which of them are trained on
  workers        the same in several processes
  lengths        what becomes of samples that are longer than a row
  token_files    the files of a data set, and what they may replace
  report         what was made, on the terminal and as a page

They are not in scripts/ itself because users do not run them, and no other script uses them."""
