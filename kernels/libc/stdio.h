// See README.md.
#pragma once

#include <stdarg.h>
#include <stddef.h>

struct FILE;
struct fpos_t {
  long long at;
};

#define EOF (-1)
#define BUFSIZ 8192
#define FILENAME_MAX 4096
#define FOPEN_MAX 16
#define L_tmpnam 20
#define TMP_MAX 238328
#define _IOFBF 0
#define _IOLBF 1
#define _IONBF 2
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2

extern "C" {
extern FILE *stdin, *stdout, *stderr;

FILE *fopen(const char*, const char*), *freopen(const char*, const char*, FILE*), *tmpfile();
char* tmpnam(char*);
int fclose(FILE*), fflush(FILE*), setvbuf(FILE*, char*, int, size_t);
int remove(const char*), rename(const char*, const char*);
void setbuf(FILE*, char*), clearerr(FILE*), perror(const char*), rewind(FILE*);

int printf(const char*, ...), scanf(const char*, ...);
int fprintf(FILE*, const char*, ...), fscanf(FILE*, const char*, ...);
int sprintf(char*, const char*, ...), snprintf(char*, size_t, const char*, ...);
int sscanf(const char*, const char*, ...);
int vprintf(const char*, va_list), vscanf(const char*, va_list);
int vfprintf(FILE*, const char*, va_list), vfscanf(FILE*, const char*, va_list);
int vsprintf(char*, const char*, va_list), vsnprintf(char*, size_t, const char*, va_list);
int vsscanf(const char*, const char*, va_list);

int fgetc(FILE*), getc(FILE*), getchar(), ungetc(int, FILE*);
int fputc(int, FILE*), putc(int, FILE*), putchar(int), fputs(const char*, FILE*), puts(const char*);
char *fgets(char*, int, FILE*), *gets(char*);
size_t fread(void*, size_t, size_t, FILE*), fwrite(const void*, size_t, size_t, FILE*);
int fgetpos(FILE*, fpos_t*), fsetpos(FILE*, const fpos_t*), fseek(FILE*, long, int);
long ftell(FILE*);
int feof(FILE*), ferror(FILE*);
}
