#pragma once
/// The program's standard input, output and error.
#include <string>

#include <gradtile/core/check.h>

namespace gradtile::cli {

/// Opens /dev/null for each closed descriptor among 0, 1 and 2. Otherwise one of the run's files could get
/// such a descriptor and receive the printed text. As in gnulib's stdopen(), each descriptor is opened in the
/// wrong direction (read-only for output), so that reading and writing still fail. Call before any file is
/// opened.
void open_missing_streams();

/// The process that reads standard output has ended (`| head`): the command ends without a message.
class BrokenPipe : public Error {
  public:
    using Error::Error;
};

/// Flushes standard output, for printf and std::cout. Throws Error "standard output: ..." when something
/// printed since the program started was not written, and BrokenPipe when the reading process has ended.
void check_output();

/// Prepares generated text for standard output. On a terminal, control characters other than line breaks and
/// tabs are escaped; otherwise the text is unchanged.
std::string text_for_output(const std::string& text);

}  // namespace gradtile::cli
