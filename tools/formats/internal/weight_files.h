#pragma once
/// Reads the tensors in one or several files, and makes a model's parameters from them.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gradtile/tools/formats/internal/weight_names.h>
#include <gradtile/tools/formats/safetensors.h>
#include <gradtile/train/checkpoint/checkpoint.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile {

/// The tensors in a .safetensors file, or in all files that an index names.
class WeightFiles {
  public:
    /// `path` is a .safetensors file or a .safetensors.index.json. Throws Error that names the file if it
    /// cannot be read, if an index names a file outside its folder, and if the index and the files do not
    /// list the same tensors.
    explicit WeightFiles(const std::string& path);

    bool has(std::string_view name) const { return place_of(name).entry != nullptr; }
    std::vector<std::string_view> names() const;
    /// Throws Error that names the file and the tensor unless the tensor has the shape `shape` and a
    /// floating-point dtype.
    void check_tensor(const std::string& name, const Shape& shape) const;
    DType dtype(const std::string& name) const;
    /// Returns "FILE: tensor 'NAME'", with which an error begins.
    std::string error_place(const std::string& name) const;
    /// Returns whether two tensors have the same dtype, shape and bytes.
    bool are_equal(const std::string& a, const std::string& b) const;
    /// Reads a part in blocks of rows, so that a large tensor needs little memory, and calls use(begin, x)
    /// for each, with x in the parameter's order. A part whose order mixes rows is one block. Throws Error
    /// that names the file and the tensor if a value is not finite.
    void for_row_blocks(const WeightPart& part,
                        const std::function<void(std::int64_t, const Tensor&)>& use) const;

  private:
    struct Place {
        const SafetensorsFile* file = nullptr;
        const SafetensorsEntry* entry = nullptr;  ///< null: no file has the tensor
    };
    void add_index(const std::string& path);
    Place place_of(std::string_view name) const;

    std::vector<SafetensorsFile> files_;
};

struct LoadedWeights {
    TrainDType dtype = TrainDType::f32;
    NamedTensors parameters = {};
};

struct WeightOptions {
    std::optional<TrainDType> dtype = {};  ///< nullopt: bf16 if every weight is stored in bfloat16, else f32
    std::function<void(std::int64_t bytes, std::int64_t of)> on_progress = {};  ///< after each parameter
};

/// Checks the shapes of all tensors, and then reads the parameters. A prefix "transformer.", "model." or
/// "gpt_neox." may be absent in the files. Throws Error naming a tensor that is missing, that has another
/// shape, that the model does not have, or whose values exceed the dtype's range.
LoadedWeights read_weights(const WeightFiles& files, std::vector<WeightMapping> mappings,
                           const std::string& source, const WeightOptions& options = {});

}  // namespace gradtile
