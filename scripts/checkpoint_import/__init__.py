"""Checkpoints of other programs: the parts of import_checkpoint.py.

  inert_pickle     what torch.save wrote, read without running anything of it
  imported_state   what the readers give: where each state of each tensor lies, and the run's
  numbers deepspeed_state  ZeRO stages 1 to 3, universal checkpoints dcp_state        folders of
  torch.distributed.checkpoint

They lie beside the scripts because nothing else uses them; what users run
stands in scripts/ itself."""
