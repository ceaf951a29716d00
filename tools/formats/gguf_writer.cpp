#include <gradtile/tools/formats/gguf_writer.h>

#include <bit>

#include <gradtile/core/check.h>
#include <gradtile/tools/formats/internal/tensor_writer.h>

namespace gradtile {
namespace {

constexpr std::uint32_t gguf_version = 3;
constexpr std::uint64_t gguf_alignment = 32;
constexpr std::string_view gguf_magic = "GGUF";

/// GGUF's numbers for the metadata types.
enum class GgufType : std::uint32_t {
    uint8 = 0,
    uint32 = 4,
    int32 = 5,
    float32 = 6,
    boolean = 7,
    string = 8,
    array = 9
};

/// Returns ggml's number for a tensor dtype.
std::uint32_t ggml_type(DType dtype, const std::string& name) {
    switch (dtype) {
        case DType::f32:
            return 0;
        case DType::f16:
            return 1;
        case DType::bf16:
            return 30;
        case DType::f64:
        case DType::i32:
            break;
    }
    throw Error(concat("gguf: tensor '", name, "' is ", dtype, "; expected float32, float16 or bfloat16"));
}

class MetadataWriter {
  public:
    explicit MetadataWriter(TensorWriter& file) : file_(file) {}

    void operator()(std::uint32_t value) const { put(GgufType::uint32, value); }
    void operator()(float value) const { put(GgufType::float32, std::bit_cast<std::uint32_t>(value)); }
    void operator()(bool value) const { put(GgufType::boolean, static_cast<std::uint8_t>(value)); }
    void operator()(const std::string& value) const {
        put_type(GgufType::string);
        put_text(value);
    }
    void operator()(const std::vector<std::string>& values) const {
        put_array(GgufType::string, values.size());
        for (const std::string& value : values) put_text(value);
    }
    void operator()(const std::vector<std::int32_t>& values) const {
        put_array(GgufType::int32, values.size());
        for (const std::int32_t value : values) file_.write_integer(value);
    }
    void operator()(const std::vector<float>& values) const {
        put_array(GgufType::float32, values.size());
        for (const float value : values) file_.write_integer(std::bit_cast<std::uint32_t>(value));
    }
    void operator()(const std::vector<std::uint8_t>& values) const {
        put_array(GgufType::uint8, values.size());
        file_.write(std::as_bytes(std::span(values)));
    }
    void put_text(std::string_view text) const {
        file_.write_integer(std::uint64_t{text.size()});
        file_.write(std::as_bytes(std::span(text)));
    }

  private:
    void put_type(GgufType type) const { file_.write_integer(static_cast<std::uint32_t>(type)); }
    template <class T>
    void put(GgufType type, T value) const {
        put_type(type);
        file_.write_integer(value);
    }
    void put_array(GgufType type, std::size_t length) const {
        put_type(GgufType::array);
        put_type(type);
        file_.write_integer(std::uint64_t{length});
    }

    TensorWriter& file_;
};

}  // namespace

void write_gguf(const std::string& path, const GgufFile& content) {
    TensorWriter file(path, Existing::refuse);
    const MetadataWriter metadata(file);
    file.write(std::as_bytes(std::span(gguf_magic)));
    file.write_integer(gguf_version);
    file.write_integer(std::uint64_t{content.tensors.size()});
    file.write_integer(std::uint64_t{content.metadata.size()});
    for (const auto& [key, value] : content.metadata) {
        metadata.put_text(key);
        std::visit(metadata, value);
    }
    std::uint64_t offset = 0;
    for (const auto& [name, x] : content.tensors) {
        metadata.put_text(name);
        file.write_integer(static_cast<std::uint32_t>(x.rank()));
        for (int axis = x.rank() - 1; axis >= 0; --axis)  // GGUF lists the innermost axis first
            file.write_integer(static_cast<std::uint64_t>(x.size(axis)));
        file.write_integer(ggml_type(x.dtype(), name));
        file.write_integer(offset);
        offset = (offset + x.bytes() + gguf_alignment - 1) / gguf_alignment * gguf_alignment;
    }
    for (const auto& [name, x] : content.tensors) {
        file.align(gguf_alignment);
        file.write(x);
    }
    file.align(gguf_alignment);
    file.commit();
}

}  // namespace gradtile
