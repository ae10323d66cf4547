/*
script: lines of words and key=value pairs, and the rules of faults, as the fakes read them.

    fault on=WHAT [device=N] [after=N] [times=N|always] EFFECT...

WHAT is a call or another thing that the fake names, or the beginning of one and a star. The first `after` that match are let pass,
the next `times` (1) are not. Effects:

    code=N                  the call fails with it
    sleep_us=N              it takes so much longer
    hang                    it waits for `release`
    lost=N                  its device is lost from then on, and calls return N
    signal=N                the process gets this signal, as from a library that aborts or reads where nothing is

Sizes end with KiB, MiB or GiB; numbers may begin with 0x.
*/
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace script {

typedef std::map<std::string, std::string> Words;

inline std::vector<std::string> split(const std::string& text, const char* separators) {
    std::vector<std::string> parts(1);
    for (const char c : text)
        if (strchr(separators, c)) parts.emplace_back();
        else parts.back() += c;
    return parts;
}

// The first word, and what follows it.
inline std::pair<std::string, std::string> verb_of(const std::string& line) {
    const size_t begin = line.find_first_not_of(" \t\n");
    if (begin == std::string::npos) return {"", ""};
    const size_t space = line.find_first_of(" \t", begin);
    if (space == std::string::npos) return {line.substr(begin), ""};
    return {line.substr(begin, space - begin), line.substr(space)};
}

// The pairs of a line, or what is wrong with it. Words without a value have an empty one.
inline std::string read(const std::string& line, const std::vector<std::string>& known, Words& words) {
    for (const std::string& word : split(line, " \t")) {
        if (word.empty()) continue;
        const size_t equals = word.find('=');
        const std::string key = word.substr(0, equals);
        if (std::find(known.begin(), known.end(), key) == known.end()) return "unknown word " + key;
        words[key] = equals == std::string::npos ? "" : word.substr(equals + 1);
    }
    return "";
}

inline bool size_of(const std::string& text, uint64_t& size) {
    char* end = nullptr;
    const double number = strtod(text.c_str(), &end);
    const std::string unit = end;
    const int shift = unit.empty() ? 0 : unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : -1;
    size = (uint64_t)(number * (double)(1ull << std::max(shift, 0)));
    return end != text.c_str() && shift >= 0 && number >= 0;
}

inline uint64_t number(const Words& words, const char* key, uint64_t otherwise) {
    const auto found = words.find(key);
    uint64_t value = 0;
    return found != words.end() && size_of(found->second, value) ? value : otherwise;
}

struct Rule {
    std::string on;
    int device = -1;
    long after = 0, times = 1;
    int code = 0, lost = 0, signal = 0;
    uint64_t sleep_us = 0;
    bool hang = false;

    bool names(const std::string& what) const {
        if (!on.empty() && on.back() == '*') return what.compare(0, on.size() - 1, on, 0, on.size() - 1) == 0;
        return what == on;
    }
};

// What happens to one call: the effects of all rules that name it.
struct Effects {
    int code = 0, lost = 0, signal = 0;
    uint64_t sleep_us = 0;
    bool hang = false;
};

// Its owner sees to it that one thread at a time is in it.
struct Rules {
    std::vector<Rule> all;
    uint64_t releases = 0;  // grows when what hangs goes on

    std::string add(const std::string& line) {
        Words words;
        const std::string wrong = read(line, {"on", "device", "after", "times", "code", "sleep_us", "hang", "lost", "signal"}, words);
        if (!wrong.empty()) return wrong;
        Rule rule;
        rule.on = words["on"];
        rule.device = (int)number(words, "device", ~0ull);
        rule.after = (long)number(words, "after", 0);
        rule.times = words.count("times") && words["times"] == "always" ? -1 : (long)number(words, "times", 1);
        rule.code = (int)number(words, "code", 0);
        rule.lost = (int)number(words, "lost", 0);
        rule.signal = (int)number(words, "signal", 0);
        rule.sleep_us = number(words, "sleep_us", 0);
        rule.hang = words.count("hang") != 0;
        if (rule.on.empty()) return "a fault needs on=WHAT";
        if (!rule.code && !rule.lost && !rule.signal && !rule.sleep_us && !rule.hang) return "a fault needs an effect";
        all.push_back(std::move(rule));
        return "";
    }

    void release() {
        all.erase(std::remove_if(all.begin(), all.end(), [](const Rule& rule) { return rule.hang; }), all.end());
        ++releases;
    }

    void clear() {
        all.clear();
        ++releases;
    }

    // `names`: all that the call goes by. `device`: its number, or -1.
    Effects meet(const std::vector<std::string>& names, int device) {
        Effects effects;
        for (Rule& rule : all) {
            if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return rule.names(name); })) continue;
            if (rule.device >= 0 && rule.device != device) continue;
            if (rule.after > 0) {
                --rule.after;
                continue;
            }
            if (!rule.times) continue;
            if (rule.times > 0) --rule.times;
            effects.sleep_us += rule.sleep_us;
            effects.hang |= rule.hang;
            if (!effects.code) effects.code = rule.code;
            if (!effects.lost) effects.lost = rule.lost;
            if (!effects.signal) effects.signal = rule.signal;
        }
        return effects;
    }
};

}  // namespace script
