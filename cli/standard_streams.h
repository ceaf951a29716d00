#pragma once
/// The program's standard input, output and error.
#include <string>

#include <gradtile/core/check.h>

namespace gradtile::cli {

/// Opens /dev/null for each of descriptors 0, 1 and 2 that is closed, so that no file of a run gets one of
/// them and with it what is printed. As gnulib's stdopen(), in the wrong direction: reading or writing there
/// fails as it did before. Call before anything is opened.
void open_missing_streams();

/// Nobody reads standard output any more (`| head`): the command ends, and needs no message.
class ReaderGone : public Error {
  public:
    using Error::Error;
};

/// Flushes standard output, of printf and std::cout. Throws Error "standard output: ..." when something
/// printed since the start of the program was not written, and ReaderGone when its reader has ended.
void check_output();

/// Text that a model made, for standard output: as it is, but on a terminal with control characters other
/// than line breaks and tabs escaped.
std::string text_for_output(const std::string& text);

}  // namespace gradtile::cli
