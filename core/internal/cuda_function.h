#pragma once
/// Declares CUDA functions of operators, so that their calls need no #if. In a build without the CUDA toolkit
/// the names are function objects that throw the Error of operator_absent(), and nothing defines them.
#include <type_traits>

#include <gradtile/core/cuda_runtime.h>

#ifndef GRADTILE_HAVE_CUDA
#error "GRADTILE_HAVE_CUDA is not defined; the CMake target gradtile_options defines it"
#endif

namespace gradtile {
/// Planning memory with a GPU's operators needs no GPU, but a build that has them.
inline constexpr bool has_cuda_operators = GRADTILE_HAVE_CUDA;
}  // namespace gradtile

namespace gradtile::cuda {

template <class Function>
struct AbsentFunction;

template <class Result, class... Args>
struct AbsentFunction<Result(Args...)> {
    using Pointer = Result (*)(Args...);
    constexpr operator Pointer() const {
        return [](Args...) -> Result { operator_absent(); };
    }
};

}  // namespace gradtile::cuda

/// Declares a function of this type in namespace cuda: GRADTILE_CUDA_FUNCTION(bool(const Tensor& x),
/// accepts);
#if GRADTILE_HAVE_CUDA
#define GRADTILE_CUDA_FUNCTION(type, name) std::type_identity_t<type> name
#else
#define GRADTILE_CUDA_FUNCTION(type, name) \
    inline constexpr ::gradtile::cuda::AbsentFunction<type> name {}
#endif
/// Declares cuda::name with the type of cpu::name.
#define GRADTILE_CUDA_TWIN(name) GRADTILE_CUDA_FUNCTION(decltype(cpu::name), name)
