#pragma once

// What data a run is trained on, in a few lines that a checkpoint keeps: a run that goes on with
// other data is another run, and should be one only if its owner says so.
//
// A fingerprint is a JSON object: of each source how many files and bytes it has and a digest of
// their content. Up to 64 MiB are read whole; of more, 64 blocks of 64 KiB that lie at equal
// distances from the first byte to the last, so that terabytes cost no more than a blink. What is
// changed between two such blocks and keeps its length is not seen. Where the files lie does not
// matter, nor who looks: rank 0 does, and all ranks hold its answer.

#include <functional>
#include <string>
#include <vector>

#include <lockstep/comm/group.h>
#include <lockstep/train/trainer.h>

namespace lockstep::train {

struct DataSource {
  std::string key;                     // what the recipe calls it: "data.text"
  std::vector<std::string> locations;  // files and folders, here or s3://, in their order
  // Which files of a folder count; if empty, all of them do.
  std::function<bool(const std::string& path)> counts = {};
  std::string word = {};  // instead of locations: what needs no file, "bytes"
};

// Collective. Sources that have neither locations nor a word are left out. Throws IoError.
std::string fingerprint_sources(const std::vector<DataSource>& sources, Group& group);

// Collective: of data that lie nowhere that could be looked at, their number and up to 32 samples
// of each, read by all ranks together. A dataset that gives the same key different samples is known
// by its number alone.
std::string fingerprint_samples(const TrainerData& data, Group& group);

// What changed between two fingerprints, as a half sentence ("data.text had 900 bytes and has 450
// now"); empty if nothing did.
std::string fingerprint_difference(const std::string& then, const std::string& now);

}  // namespace lockstep::train
