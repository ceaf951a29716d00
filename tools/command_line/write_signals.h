#pragma once
/// Signals and files: SIGPIPE (the pipe has no reader) and SIGXFSZ (the file size limit, ulimit -f), which a
/// write can cause, and the signals that end a command while it writes.

namespace gradtile::cli {

/// Ignores SIGPIPE and SIGXFSZ in the whole process: the write fails with an error instead, like a write to a
/// full disk. The launcher restores the default actions in its children.
void ignore_write_signals();

/// Makes SIGINT, SIGTERM and SIGHUP remove the files that are not finished before they end the process as
/// usual. Signals that a shell or nohup ignores stay ignored.
void remove_files_on_signals();

}  // namespace gradtile::cli
