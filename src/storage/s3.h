#pragma once

// s3:// for open_storage() and open_source(): s3.cpp, or no_s3.cpp where libcurl was not found.

#include "storage/location.h"
#include "storage/storage.h"

namespace lockstep::storage {

std::shared_ptr<Storage> open_s3_storage(const Location& place);
std::unique_ptr<base::ByteSource> open_s3_source(const Location& place);

}  // namespace lockstep::storage
