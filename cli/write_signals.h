#pragma once
/// Signals that a write can cause: SIGPIPE (whoever read the pipe is gone) and SIGXFSZ (the file may grow no
/// further, ulimit -f). Ignored, they make the write fail with an error like that of a full disk.

namespace gradtile::cli {

/// For the whole process. The launcher gives its children the default actions back.
void ignore_write_signals();

}  // namespace gradtile::cli
