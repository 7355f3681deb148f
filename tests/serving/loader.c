// Serves an export with TensorFlow's C++ loader, the one that TensorFlow Serving calls. No Python.
//
//     loader EXPORT < requests
//
// A request is words: the operation of the input and its output's index; `uint8` with the number of
// dimensions, the dimensions and a file of pixels, or `string` with a number of files; then the
// number of outputs, and operation and index of each. The answer is a line for each output, its
// values; or `error`, the code and the message.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

#define MANY 64
#define WORD 4096

static void fail(const char* what) {
  fprintf(stderr, "loader: %s\n", what);
  exit(2);
}

static long number(void) {
  long value;
  if (scanf("%ld", &value) != 1) fail("expected a number");
  return value;
}

static char* word(void) {
  static char text[WORD];
  if (scanf("%4095s", text) != 1) fail("expected a word");
  return text;
}

static char* content(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (!file) fail(path);
  fseek(file, 0, SEEK_END);
  *size = ftell(file);
  rewind(file);
  char* data = malloc(*size + 1);
  if (fread(data, 1, *size, file) != *size) fail(path);
  fclose(file);
  return data;
}

static TF_Output operation(TF_Graph* graph, char* name) {
  TF_Output output = {TF_GraphOperationByName(graph, name), 0};
  if (!output.oper) fail(name);
  output.index = (int)number();
  return output;
}

static TF_Tensor* input(void) {
  size_t size;
  if (strcmp(word(), "uint8") == 0) {
    int64_t dims[MANY];
    int count = (int)number();
    for (int i = 0; i < count; ++i) dims[i] = number();
    char* data = content(word(), &size);
    TF_Tensor* tensor = TF_AllocateTensor(TF_UINT8, dims, count, size);
    memcpy(TF_TensorData(tensor), data, size);
    free(data);
    return tensor;
  }
  int64_t count = number();
  TF_Tensor* tensor = TF_AllocateTensor(TF_STRING, &count, 1, count * sizeof(TF_TString));
  TF_TString* strings = TF_TensorData(tensor);
  for (int64_t i = 0; i < count; ++i) {
    char* data = content(word(), &size);
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], data, size);
    free(data);
  }
  return tensor;
}

static void print(const TF_Tensor* tensor) {
  const void* data = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); ++i) {
    if (TF_TensorType(tensor) == TF_FLOAT) {
      printf("%.9g ", ((const float*)data)[i]);
    } else if (TF_TensorType(tensor) == TF_BOOL) {
      printf("%d ", ((const unsigned char*)data)[i]);
    } else {
      fail("an output is neither float nor bool");
    }
  }
  printf("\n");
}

int main(int argc, char** argv) {
  if (argc != 2) fail("expected the directory of an export");
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized")) fail("Python is in this process");
  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  if (TF_GetCode(status) != TF_OK) fail(TF_Message(status));
  char name[WORD];
  while (scanf("%4095s", name) == 1) {
    TF_Output from = operation(graph, name), to[MANY];
    TF_Tensor *given = input(), *found[MANY];
    int count = (int)number();
    for (int i = 0; i < count; ++i) to[i] = operation(graph, word());
    TF_SessionRun(session, NULL, &from, &given, 1, to, found, count, NULL, 0, NULL, status);
    if (TF_GetCode(status) == TF_OK) {
      for (int i = 0; i < count; ++i) {
        print(found[i]);
        TF_DeleteTensor(found[i]);
      }
    } else {
      const char* text = TF_Message(status);  // its first line; the others tell where in the graph
      printf("error %d %.*s\n", TF_GetCode(status), (int)strcspn(text, "\n"), text);
    }
    TF_DeleteTensor(given);
  }
  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
