#pragma once
/// INTERNAL. Memory that an operator writes and also reads. An operator states for each tensor that it writes
/// whether the tensor may share memory with the other operands, and refuses what it does not allow, because
/// the result would depend on the order of reads and writes.
#include <initializer_list>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// Whether a byte belongs to an element of both tensors. Interleaved views, for example two column ranges in
/// one matrix, do not overlap. Exact for all layouts that slice(), select(), transpose(), reshape() and
/// expand() make. For other layouts the search may end undecided; the result is then false.
bool overlap(const Tensor& a, const Tensor& b);

/// Whether both tensors are the same elements in the same order.
bool is_same_view(const Tensor& a, const Tensor& b);

/// A tensor and its name in an operator's messages.
struct Operand {
    const char* name;
    const Tensor& tensor;
};

/// Throws Error with the operand's name if several elements of `written` are the same memory, as after
/// expand(). The operator would then keep only one of their results.
void check_distinct_elements(const char* op, const Operand& written);

/// Which operands may share memory with a tensor that an operator writes. same_view: an operand may be the
/// same view as the written tensor, as in elementwise operators, which read an element before they write it.
enum class Sharing { none, same_view };

/// Throws Error with both operands' names if `written` overlaps another operand in a way that `allowed` does
/// not allow. Undefined tensors have no memory. Does nothing in a dry run, which has no memory either.
void check_sharing(const Context& ctx, const char* op, const Operand& written,
                   std::initializer_list<Operand> others, Sharing allowed = Sharing::none);

}  // namespace gradtile
