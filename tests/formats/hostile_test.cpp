// docs/formats/hostile.md, row by row.

#include <map>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/readers.h"
#include "formats/support.h"
#include "support/paths.h"

namespace lockstep::test {
namespace {

struct Row {
  std::string file;
  std::string error;
};

std::string without_spaces(const std::string& cell) {
  const size_t first = cell.find_first_not_of(' ');
  return first == cell.npos ? "" : cell.substr(first, cell.find_last_not_of(' ') + 1 - first);
}

// "| a | b |", where "\|" is a bar inside a cell.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::string cell;
  for (size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '\\' && line[i + 1] == '|') {
      cell += line[++i];
    } else if (line[i] == '|') {
      cells.push_back(without_spaces(cell));
      cell.clear();
    } else {
      cell += line[i];
    }
  }
  return cells;
}

// By reader: the tables under the headings "## reader: ...".
std::map<std::string, std::vector<Row>> read_table() {
  std::istringstream page(file_text(testing_support::in_tree("docs/formats/hostile.md")));
  std::map<std::string, std::vector<Row>> rows;
  std::string reader;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) {
      reader = line.substr(3, line.find(':') - 3);
    } else if (line.starts_with("| ") && !line.starts_with("| rule |")) {
      const std::vector<std::string> cells = cells_of(line);
      EXPECT_EQ(cells.size(), 3u) << line;
      EXPECT_TRUE(cells[1].starts_with('`') && cells[1].ends_with('`')) << line;
      rows[reader].push_back({cells[1].substr(1, cells[1].size() - 2), cells[2]});
    }
  }
  return rows;
}

TEST(Hostile, EveryFileOfTheTableIsRefusedWithItsError) {
  std::map<std::string, std::vector<Row>> table = read_table();
  for (const Reader& reader : readers()) {
    std::map<std::string, std::string> files;
    for (HostileFile& file : reader.hostile_files()) {
      EXPECT_TRUE(files.emplace(file.name, std::move(file.bytes)).second) << file.name;
    }
    for (const Row& row : table[std::string(reader.name)]) {
      const auto file = files.find(row.file);
      ASSERT_NE(file, files.end()) << reader.name << ": no file " << row.file;
      const std::string message = refusal([&] { reader.read(file->second); });
      ASSERT_FALSE(row.error.empty());
      EXPECT_THAT(message, testing::HasSubstr(row.error)) << reader.name << ": " << row.file;
      EXPECT_THAT(message, testing::StartsWith("x: ")) << reader.name << ": " << row.file;
      files.erase(file);
    }
    for (const auto& [name, bytes] : files) {
      ADD_FAILURE() << reader.name << ": no row for the file " << name;
    }
    table.erase(std::string(reader.name));
  }
  for (const auto& [name, rows] : table) {
    ADD_FAILURE() << "no reader " << name;
  }
}

TEST(Hostile, GoodFilesAreRead) {
  for (const Reader& reader : readers()) {
    EXPECT_FALSE(seeds(reader).empty()) << reader.name;
    for (const std::string& bytes : seeds(reader)) {
      EXPECT_NO_THROW(reader.read(bytes)) << reader.name;
    }
  }
}

TEST(Hostile, EveryTruncationOfAGoodFileIsRefused) {
  for (const Reader& reader : readers()) {
    for (const std::string& bytes : seeds(reader)) {
      // A sidecar without its line end is one; a tar's last zeros may be missing, see its own test.
      if (reader.name == "sidecar" || bytes.find("ustar") == 257) {
        continue;
      }
      for_each_cut(bytes, [&](std::string_view cut) {
        EXPECT_NE(refusal([&] { reader.read(cut); }), "") << reader.name << ", " << cut.size();
      });
    }
  }
}

TEST(Hostile, NoFlippedBitOfAGoodFileBreaksAReader) {
  constexpr size_t kMaxBytes = 1024;
  for (const Reader& reader : readers()) {
    for (const std::string& bytes : seeds(reader)) {
      for_each_flip(bytes, 0, std::min(bytes.size(), kMaxBytes),
                    [&](std::string_view flipped, size_t byte) {
                      EXPECT_NO_THROW(refusal([&] { reader.read(flipped); }))
                          << reader.name << ", byte " << byte;
                    });
    }
  }
}

}  // namespace
}  // namespace lockstep::test
