#include <gradtile/core/cuda/step_graph.h>

#include <gradtile/core/internal/cuda_check.h>

namespace gradtile {
namespace {

using cuda::cuda_check;

struct DestroyGraph {
    void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

/// Ends a capture. Returns null if the capture was invalid.
Graph end_capture(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) graph = nullptr;
    return Graph(graph);
}

Graph record(cudaStream_t stream, const std::function<void()>& body) {
    // In the mode ThreadLocal, a capture forbids certain calls in this thread only. Another thread may write
    // a checkpoint at the same time.
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
        body();
    } catch (...) {
        end_capture(stream);
        (void)cudaGetLastError();  // clears the refused call's error, which the next check would report
        throw;
    }
    Graph graph = end_capture(stream);
    (void)cudaGetLastError();
    check(graph != nullptr, "cuda graph: the step contains an operation that cannot be captured");
    return graph;
}

}  // namespace

void StepGraph::capture(const Context& ctx, const std::function<void()>& body) {
    cuda::use_device(ctx.device());
    graph_ = nullptr;
    const Graph graph = record(static_cast<cudaStream_t>(ctx.stream()), body);
    cuda_check(cudaGraphGetNodes(graph.get(), nullptr, &nodes_));
    cudaGraphExec_t executable = nullptr;
    cuda_check(cudaGraphInstantiate(&executable, graph.get(), 0));
    graph_ = {executable, [](void* g) { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(g)); }};
    cuda_check(cudaGraphUpload(executable, static_cast<cudaStream_t>(ctx.stream())));
}

void StepGraph::replay(const Context& ctx) const {
    check(captured(), "cuda graph: replay before capture");
    cuda::use_device(ctx.device());
    cuda_check(
        cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_.get()), static_cast<cudaStream_t>(ctx.stream())));
}

}  // namespace gradtile
