"""Plans that grow op by op: each goes where a choice says, with the transfers that it still needs, in compiled code."""
