#include <algorithm>
#include <map>
#include <set>

#include "data/image_batch.h"
#include "data/image_names.h"
#include "storage/storage.h"

namespace lockstep {

namespace {

// A few of the names.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return text + (names.size() > kShown ? ", ..." : "");
}

class ImageFolder : public data::ImageDataset {
 public:
  ImageFolder(const std::string& location, const ImageOptions& options)
      : data::ImageDataset(options),
        storage_(storage::open_storage(location)),
        is_remote_(lockstep::storage::is_remote(location)) {
    std::map<std::string, std::vector<std::string>> classes;
    for (const storage::ObjectInfo& object : storage_->list()) {
      const size_t slash = object.path.find('/');
      if (slash != std::string::npos && data::is_picture_name(object.path)) {
        classes[object.path.substr(0, slash)].push_back(object.path);
      }
    }
    classes_ = options.classes;
    for (auto& [name, paths] : classes) {
      if (options.classes.empty()) {
        classes_.push_back(name);
      }
      const int64_t label = number_of(name, location);
      for (std::string& path : paths) {
        files_.push_back({.path = std::move(path), .label = label});
      }
    }
  }

  int64_t size() const override { return std::ssize(files_); }
  std::vector<std::string> classes() const override { return classes_; }

 private:
  struct File {
    std::string path;
    int64_t label = 0;
  };

  // The place of a class in the list.
  int64_t number_of(const std::string& name, const std::string& location) const {
    const auto found = std::find(classes_.rbegin(), classes_.rend(), name);
    if (found == classes_.rend()) {
      throw UsageError(
          "images: the folder \"{}\" in {} is none of the {} classes that the model is trained on "
          "({}); name it as there, or take it away",
          name, location, classes_.size(), listed(classes_));
    }
    return classes_.rend() - found - 1;
  }

  data::ImageSource read(int64_t index) const override {
    const File& file = files_[static_cast<size_t>(index)];
    const auto source = storage_->open(file.path);
    data::check_file_size(source->size(), source->name());
    return {
        .name = source->name(), .bytes = source->read_text(0, source->size()), .label = file.label};
  }
  bool is_remote() const override { return is_remote_; }

  const std::shared_ptr<storage::Storage> storage_;
  const bool is_remote_;
  std::vector<File> files_;
  std::vector<std::string> classes_;
};

}  // namespace

std::shared_ptr<const Dataset> open_image_folder(const std::string& location,
                                                 ImageOptions options) {
  data::check_image_options(options);
  if (std::set(options.classes.begin(), options.classes.end()).size() != options.classes.size()) {
    throw UsageError("images: the list of {} classes has a name twice: {}", options.classes.size(),
                     listed(options.classes));
  }
  auto data = std::make_shared<ImageFolder>(location, options);
  if (data->size() == 0) {
    throw UsageError("images: {} has no CLASS/NAME.jpg, .jpeg or .png in it", location);
  }
  return data;
}

}  // namespace lockstep
