// See README.md.
#pragma once

extern "C" {
int isalnum(int), isalpha(int), isblank(int), iscntrl(int), isdigit(int), isgraph(int);
int islower(int), isprint(int), ispunct(int), isspace(int), isupper(int), isxdigit(int);
int tolower(int), toupper(int);
}
