"""The modules of import_checkpoint.py, which read checkpoints of other programs:

  inert_pickle     reads files of torch.save without running any code in them
  imported_state   what the readers return: where each state of each tensor lies, and numbers
  deepspeed_state  ZeRO stages 1 to 3, and universal checkpoints
  dcp_state        folders of torch.distributed.checkpoint

They are not in scripts/ itself because users do not run them, and no other script uses them."""
