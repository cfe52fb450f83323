#pragma once

// Configuration: defaults in code, then a TOML file, then `--set section.key=value`.
//
//   struct CatsConfig { int64_t epochs = 12; double lr = 0.01; };   // the one truth
//   Config config = Config::from_file("recipes/cats.toml");
//   config.set("train.lr=0.02");
//   CatsConfig cats;
//   config.read("train.epochs", cats.epochs, {.min = 1});
//   config.read("train.lr", cats.lr);
//   config.finish();             // UsageError for a key that nobody read, with the nearest that
//   exists
//
// The value that each read() left is kept, so that effective() can print what the run really used.

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace lockstep::base {

// Whole numbers and reals outside are refused, and NaN always.
struct ConfigRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool excludes_min = false;
  bool excludes_max = false;

  bool contains(double value) const {
    return (excludes_min ? value > min : value >= min) &&
           (excludes_max ? value < max : value <= max);
  }
  std::string text() const;  // "[0, 1)"
};

// What a path may be beside one path.
struct ConfigPath {
  std::string word = {};  // no path, but a word that means something: "bytes"
  bool is_list = false;   // several, with commas
};

class Config {
 public:
  using Range = ConfigRange;

  // Nothing set: every read keeps its default.
  Config() = default;

  // Throw UsageError with file, line and reason.
  static Config from_file(const std::string& path);
  static Config from_text(const std::string& toml, const std::string& name = "<text>");

  // "section.key=value", the value in TOML (a bare word is a string). Overrides the file.
  void set(const std::string& assignment);

  // Replaces `value` if the key is set. Throws UsageError on a wrong type or range; a whole number
  // is accepted where a real is wanted.
  void read(const std::string& key, bool& value);
  void read(const std::string& key, int64_t& value, Range range = {});
  void read(const std::string& key, double& value, Range range = {});
  void read(const std::string& key, std::string& value,
            const std::vector<std::string>& choices = {});
  // A key that has no value unless it is set; effective() has it only then.
  void read(const std::string& key, std::optional<double>& value, Range range = {});

  // A file or folder, or s3://... One that stands in a file is relative to the folder of that file,
  // so that the file works from everywhere; one of set() and a default are relative to the working
  // folder. `value` is left as it can be opened from the working folder.
  void read_path(const std::string& key, std::string& value, const ConfigPath& kind = {});

  bool is_set(const std::string& key) const { return entries_.count(key) > 0; }

  // Whether any key of "train.groups.0" is set: the first of `[[train.groups]]`. A list of tables
  // is that many sections, numbered from 0; by their numbers set() reaches them, and effective()
  // has them so.
  bool has_section(const std::string& section) const;
  bool is_set_here(const std::string& key) const;  // by set(), and not by the file

  // Acts from now on as if the file did not have the key: something in set() replaces all of it.
  void forget_in_file(const std::string& key);

  // Throws UsageError if a key was set that nobody read, with the key that was meant: `other_names`
  // says what other programs call ours ("learning_rate", "lr"), the rest is told by the spelling.
  void finish(const std::map<std::string, std::string>& other_names = {}) const;

  // What every read() left, as TOML, in the order of the keys: read back, it gives the same run.
  std::string effective() const;

  // The same with every path absolute: it gives the same run in another working folder, too.
  std::string remembered() const;

  // What effective() would be if nothing had been set.
  std::string defaults() const;

  bool is_path(const std::string& key) const { return paths_.contains(key); }

 private:
  using Value = std::variant<bool, int64_t, double, std::string>;
  struct Entry {
    Value value;
    std::string origin;    // "recipes/cats.toml:4" or "--set": for messages
    bool in_file = false;  // not of set()
  };

  template <typename T>
  const Entry* take(const std::string& key, T& value);
  std::vector<std::string> known_keys() const;
  std::string meant_by(const std::string& key,
                       const std::map<std::string, std::string>& other_names) const;

  std::string folder_;  // of the file; empty: the working folder
  std::map<std::string, Entry> entries_;
  std::map<std::string, Value> effective_;
  std::map<std::string, Value> defaults_;
  std::set<std::string> without_default_;  // keys that may be set, and were not
  std::map<std::string, ConfigPath> paths_;
};

}  // namespace lockstep::base
