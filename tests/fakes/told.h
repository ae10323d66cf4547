/*
told: lines that a test says to the fakes of other processes, while these run.

FAKE_TOLD names a file that all processes of a test read from. A line of it begins with the fake that it is for:

    cuda fault on=kernel hang
    nvml xid gpu=0 code=79

    cuda@GPU-fa000000-0000-0000-0000-000000000001 fault on=kernel code=700

The second form is for processes that see this GPU alone, or that were not told what they see.

A process that starts later obeys, of what was said before, only what lasts: what a machine has and is, and not what befell a process;
and what has `still` before it (cuda still fault on=kernel hang), until `still clear`.
How far each process has come is in a file of its own beside it, FAKE_TOLD.FAKE.PID: a number of bytes.
*/
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "script.h"

namespace told {

// The file from `from` to the end of its last whole line.
inline std::string read_from(const char* path, size_t from) {
    std::ifstream file(path, std::ios::binary);
    file.seekg((std::streamoff)from);
    std::stringstream text;
    text << file.rdbuf();
    const std::string all = text.str();
    const size_t end = all.rfind('\n');
    return end == std::string::npos ? "" : all.substr(0, end + 1);
}

inline void write_ack(const std::string& path, size_t read) {
    const std::string part = path + ".part";
    if (FILE* file = fopen(part.c_str(), "w")) {
        fprintf(file, "%zu", read);
        fclose(file);
        rename(part.c_str(), path.c_str());
    }
}

// Obeys what was said and lasts, and from now on all that is said, on a thread of its own.
template <class Obey> void listen(const std::string& fake, std::vector<std::string> lasting, Obey obey) {
    const char* path = getenv("FAKE_TOLD");
    if (!path) return;
    const std::string ack = std::string(path) + "." + fake + "." + std::to_string(getpid());
    const char* visible = getenv("CUDA_VISIBLE_DEVICES");
    const std::string sees = visible ? visible : "";
    const auto hear = [=](const std::string& text, bool all) {
        for (const std::string& line : script::split(text, "\n")) {
            const auto [who, said] = script::verb_of(line);
            const bool one = who.compare(0, fake.size() + 1, fake + "@") == 0;
            if (who != fake && !(one && (sees.empty() || who.substr(fake.size() + 1) == sees))) continue;
            const auto [verb, rest] = script::verb_of(said);
            const bool still = verb == "still";
            const std::string words = still ? rest : said;
            if (!(all || still || std::find(lasting.begin(), lasting.end(), verb) != lasting.end())) continue;
            const std::string wrong = obey(words);
            if (wrong.empty()) continue;
            fprintf(stderr, "fake %s: FAKE_TOLD:%s: %s\n", fake.c_str(), words.c_str(), wrong.c_str());
            abort();
        }
    };
    // The thread outlives whoever loaded this library, which may close it.
    Dl_info self;
    if (dladdr((const void*)&write_ack, &self)) dlopen(self.dli_fname, RTLD_NOW | RTLD_NODELETE);
    const std::string before = read_from(path, 0);
    hear(before, false);
    write_ack(ack, before.size());
    std::thread([=, from = before.size()]() mutable {
        for (;; usleep(1000)) {
            const std::string text = read_from(path, from);
            if (text.empty()) continue;
            hear(text, true);
            write_ack(ack, from += text.size());
        }
    }).detach();
}

}  // namespace told
