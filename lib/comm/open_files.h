#pragma once

namespace ftrun {

/// Raises this process's limit of open files as far as it may be raised. The usual limit of 1,024
/// exists for programs that use select(), which cannot handle larger descriptors. Under it no more
/// than a few hundred ranks can connect.
void raise_open_file_limit();

/// Throws Error(kEnvironment) if the limit, after raise_open_file_limit(), is too low for the
/// connections of `world_size` ranks to the store of rank 0.
void check_open_file_limit(int world_size);

}  // namespace ftrun
