"""The parts of prepare_data.py, from files of texts and chats to token files, in the order in which
a document passes through them.

  records        files (JSONL, JSON, Parquet, Arrow, text; gzip, zstd) to documents
  fields         which fields a record may have, and how each is used
  conversations  a document's keys to messages or a text
  templates      messages to text by the chat template, and which characters are trained on
  encoding       text to token ids, and which of them are trained on
  workers        encoding in several processes
  lengths        samples that are longer than a sequence: cut, split or left out
  token_files    the files of a data set, and what they may replace
  report         counts and warnings, on the terminal and as an HTML page

They are not in scripts/ itself because users do not run them, and no other script uses them."""
