#pragma once

namespace ftrun {

/// Raises this process's limit of open files as far as it may be raised. The usual limit of 1,024
/// is for programs that cannot look at larger descriptors (select), and no more than a few hundred
/// ranks can have connections under it.
void raise_open_files();

/// Throws Error(kEnvironment) if the limit is too low for the connections of `world` ranks to the
/// store of rank 0, after raise_open_files().
void require_open_files(int world);

}  // namespace ftrun
