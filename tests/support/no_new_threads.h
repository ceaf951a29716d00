#pragma once
/// Makes the system refuse new threads.
#include <pthread.h>

#include <cstddef>

namespace gradtile::test {

/// While an object exists, the process can start no new thread, because the default stack size exceeds the
/// address space.
class NoNewThreads {
  public:
    NoNewThreads() {
        pthread_getattr_default_np(&former_);
        pthread_attr_t huge;
        pthread_attr_init(&huge);
        pthread_attr_setstacksize(&huge, std::size_t{1} << 50);
        pthread_setattr_default_np(&huge);
        pthread_attr_destroy(&huge);
    }
    ~NoNewThreads() {
        pthread_setattr_default_np(&former_);
        pthread_attr_destroy(&former_);
    }
    NoNewThreads(const NoNewThreads&) = delete;
    NoNewThreads& operator=(const NoNewThreads&) = delete;

  private:
    pthread_attr_t former_;
};

}  // namespace gradtile::test
