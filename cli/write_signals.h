#pragma once
/// Signals that a write can cause: SIGPIPE (the pipe has no reader) and SIGXFSZ (the file size limit, ulimit
/// -f). When they are ignored, the write fails with an error instead, like a write to a full disk.

namespace gradtile::cli {

/// Ignores both signals in the whole process. The launcher restores the default actions in its children.
void ignore_write_signals();

}  // namespace gradtile::cli
