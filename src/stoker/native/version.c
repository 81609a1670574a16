/* Which sources the library was made from. The loader looks for it in the file before it loads that. */

#include "native.h"

EXPORTED const char stoker_sources[] = "stoker-native-sources:" STOKER_SOURCES;
