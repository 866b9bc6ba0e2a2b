// A SoapySDR driver without hardware for tests: what is sent is received once, after some silence, at a tenth of the
// amplitude. It accepts and gives samples in uneven portions, as radios do.
#include <SoapySDR/Device.hpp>
#include <SoapySDR/Registry.hpp>
#include <algorithm>
#include <complex>
#include <mutex>
#include <unistd.h>
#include <vector>

static std::mutex guard;
static std::vector<std::complex<float>> air;  // sent and not yet received
static size_t silence = 3000;                 // samples before it

class Loopback : public SoapySDR::Device {
    double rate = 0;

  public:
    std::string getDriverKey() const override { return "airdistill_loopback"; }
    size_t getNumChannels(const int) const override { return 1; }
    void setSampleRate(const int, const size_t, const double wanted) override { rate = wanted; }
    double getSampleRate(const int, const size_t) const override { return rate; }
    void setFrequency(const int, const size_t, const double, const SoapySDR::Kwargs &) override {}
    SoapySDR::Stream *setupStream(const int direction, const std::string &, const std::vector<size_t> &,
                                  const SoapySDR::Kwargs &) override {
        return reinterpret_cast<SoapySDR::Stream *>(new int(direction));
    }
    void closeStream(SoapySDR::Stream *stream) override { delete reinterpret_cast<int *>(stream); }
    int activateStream(SoapySDR::Stream *, const int, const long long, const size_t) override { return 0; }
    int deactivateStream(SoapySDR::Stream *, const int, const long long) override { return 0; }
    int writeStream(SoapySDR::Stream *, const void *const *buffers, const size_t count, int &, const long long,
                    const long) override {
        std::lock_guard<std::mutex> held(guard);
        const auto *given = static_cast<const std::complex<float> *>(buffers[0]);
        const size_t taken = std::min<size_t>(count, 1501);
        for (size_t i = 0; i < taken; i++) air.push_back(0.1f * given[i]);
        return int(taken);
    }
    int readStream(SoapySDR::Stream *, void *const *buffers, const size_t count, int &, long long &,
                   const long) override {
        std::lock_guard<std::mutex> held(guard);
        auto *out = static_cast<std::complex<float> *>(buffers[0]);
        usleep(500);  // about two million samples a second
        const size_t given = std::min<size_t>(count, 977);
        for (size_t i = 0; i < given; i++) out[i] = 0;
        if (silence > 0) {
            silence -= std::min(silence, given);
            return int(given);
        }
        const size_t heard = std::min(given, air.size());
        std::copy(air.begin(), air.begin() + heard, out);
        air.erase(air.begin(), air.begin() + heard);
        return int(given);
    }
};

static SoapySDR::KwargsList find(const SoapySDR::Kwargs &) { return {{{"driver", "airdistill_loopback"}}}; }
static SoapySDR::Device *make(const SoapySDR::Kwargs &) { return new Loopback(); }
static SoapySDR::Registry registered("airdistill_loopback", &find, &make, SOAPY_SDR_ABI_VERSION);
