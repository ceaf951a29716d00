#pragma once
/// Calls to libhdf5: one thread at a time calls it, every handle has an owner, every call is checked, and
/// libhdf5 prints no messages and loads no plugins.
#include <mutex>
#include <string>
#include <utility>

#include <hdf5.h>

#include <gradtile/core/check.h>

namespace gradtile {

/// The process-wide lock for libhdf5, which is not thread-safe. Also disables its error printing and its
/// plugins (a file can name filters to load).
class Hdf5Lock {
  public:
    Hdf5Lock();

  private:
    std::unique_lock<std::mutex> lock_;
};

/// Throws Error for a failed libhdf5 call: "cannot WHAT (libhdf5: the innermost reason)". The caller adds the
/// file's name.
[[noreturn]] void throw_hdf5_error(const std::string& what);

/// Returns the result unless it is an error (libhdf5: negative), which throws.
template <class Result>
Result hdf5_check(Result result, const std::string& what) {
    if (result < 0) throw_hdf5_error(what);
    return result;
}

/// Owns an HDF5 id; `Close` is the function that releases it.
template <herr_t (*Close)(hid_t)>
class Hdf5Handle {
  public:
    Hdf5Handle() = default;
    Hdf5Handle(hid_t id, const std::string& what) : id_(hdf5_check(id, what)) {}
    ~Hdf5Handle() {
        if (id_ >= 0) Close(id_);
    }
    Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
    Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
        std::swap(id_, other.id_);
        return *this;
    }
    Hdf5Handle(const Hdf5Handle&) = delete;
    Hdf5Handle& operator=(const Hdf5Handle&) = delete;

    hid_t get() const { return id_; }
    /// Closes the id now and throws Error when libhdf5 cannot close it.
    void close(const std::string& what) {
        if (id_ >= 0) hdf5_check(Close(std::exchange(id_, -1)), what);
    }

  private:
    hid_t id_ = -1;
};

using Hdf5File = Hdf5Handle<H5Fclose>;
using Hdf5Group = Hdf5Handle<H5Gclose>;
using Hdf5Dataset = Hdf5Handle<H5Dclose>;
using Hdf5Attribute = Hdf5Handle<H5Aclose>;
using Hdf5Space = Hdf5Handle<H5Sclose>;
using Hdf5Type = Hdf5Handle<H5Tclose>;
using Hdf5PropertyList = Hdf5Handle<H5Pclose>;

}  // namespace gradtile
