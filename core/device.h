#pragma once
/// A CPU or a GPU, which has memory and runs operators.
#include <iosfwd>

namespace gradtile {

class Device {
  public:
    enum class Kind { cpu, cuda };
    static constexpr Device cpu() { return Device(Kind::cpu, 0); }
    static constexpr Device cuda(int index = 0) { return Device(Kind::cuda, index); }

    constexpr Kind kind() const { return kind_; }
    constexpr int index() const { return index_; }
    constexpr bool is_cpu() const { return kind_ == Kind::cpu; }
    constexpr bool is_cuda() const { return kind_ == Kind::cuda; }
    constexpr bool operator==(const Device&) const = default;

  private:
    constexpr Device(Kind kind, int index) : kind_(kind), index_(index) {}
    Kind kind_;
    int index_;
};
/// Prints "cpu" or "cuda:0".
std::ostream& operator<<(std::ostream& out, Device device);

/// Returns how many CUDA devices are usable: 0 if the build had no CUDA toolkit, or the machine has no driver
/// or no GPU.
int cuda_device_count();

}  // namespace gradtile
