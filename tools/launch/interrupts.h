#pragma once
/// Ctrl-C as an event that does not end the program.
#include <signal.h>

namespace gradtile::cli {

/// While an Interrupts exists, SIGINT makes descriptor() readable. A SIGINT that was ignored at the start
/// (nohup) stays ignored. There is at most one object at a time.
class Interrupts {
  public:
    Interrupts();
    ~Interrupts();
    Interrupts(const Interrupts&) = delete;
    Interrupts& operator=(const Interrupts&) = delete;

    /// Returns whether SIGINT arrived since the last call that returned true.
    bool take();
    int descriptor() const { return pipe_[0]; }

  private:
    int pipe_[2];
    struct sigaction former_ {};
};

}  // namespace gradtile::cli
