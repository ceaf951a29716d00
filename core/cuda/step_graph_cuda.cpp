#include <gradtile/core/cuda/step_graph.h>

#include <gradtile/core/cuda/internal/cuda_check.h>

namespace gradtile {
namespace {

using cuda::cuda_check;

struct DestroyGraph {
    void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

/// Ends a capture in any case; the graph is null when it was broken.
Graph end_capture(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) graph = nullptr;
    return Graph(graph);
}

Graph record(cudaStream_t stream, const std::function<void()>& body) {
    // Only this thread is held to what a capture allows: another may be writing a checkpoint.
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
        body();
    } catch (...) {
        end_capture(stream);
        (void)cudaGetLastError();  // the refused call's error must not meet the next check
        throw;
    }
    Graph graph = end_capture(stream);
    (void)cudaGetLastError();
    check(graph != nullptr, "cuda graph: the step does something that cannot be captured");
    return graph;
}

}  // namespace

void StepGraph::capture(const Context& ctx, const std::function<void()>& body, std::size_t most_nodes) {
    cuda::use_device(ctx.device());
    graph_ = nullptr;
    const Graph graph = record(static_cast<cudaStream_t>(ctx.stream()), body);
    cuda_check(cudaGraphGetNodes(graph.get(), nullptr, &nodes_));
    check(nodes_ <= most_nodes, "cuda graph: the step has ", nodes_, " kernels, copies and fills; at most ",
          most_nodes, " are worth their memory");
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
